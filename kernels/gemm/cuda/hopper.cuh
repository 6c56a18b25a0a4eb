// What the parts of 07_warp_specialized share: sizes of tiles, the layout of shared memory, and the order of tiles.
//
// Letters     BM BN BK tile of a block; STAGES tiles in flight; CONSUMERS warpgroups that multiply; PINGPONG 1 when each
//             of them has tiles of its own; CM CN blocks of a cluster along M and N; GROUP, ALONG the order of tiles;
//             BUFFERS pieces of a finished tile on their way to memory; SPLIT slabs of K
// Layout of an operand's tile in shared memory, after its tensor map: chunks of SWIZZLE bytes along the contiguous
// dimension, each as many rows as the tile has along the other one; when blocks share a tile, each loads some rows of
// every chunk.
#pragma once

#include "bulk.cuh"
#include "cluster.cuh"
#include "mbarrier.cuh"
#include "registers.cuh"
#include "wgmma.cuh"

#ifndef KS_CM
#define KS_CM 1
#endif
#ifndef KS_CN
#define KS_CN 1
#endif
#ifndef KS_PINGPONG
#define KS_PINGPONG 0
#endif
#ifndef KS_BUFFERS
#define KS_BUFFERS 2
#endif
#ifndef KS_GROUP
#define KS_GROUP 8
#endif
#ifndef KS_ALONG
#define KS_ALONG 0
#endif
#ifndef KS_COMBINE  // 1 when the slabs of a tile are one cluster, which adds them up
#define KS_COMBINE 0
#endif

constexpr int BM = KS_BM, BN = KS_BN, BK = KS_BK, STAGES = KS_STAGES, CONSUMERS = KS_CONSUMERS;
constexpr int CM = KS_CM, CN = KS_CN, BUFFERS = KS_BUFFERS;
#ifdef KS_SPLIT
constexpr int SPLIT = KS_SPLIT;
#else
constexpr int SPLIT = 1;
#endif
constexpr bool PINGPONG = KS_PINGPONG;
constexpr bool COMBINE = KS_COMBINE;
constexpr int CLUSTER = COMBINE ? SPLIT : CM * CN;                // blocks
constexpr int PARTIES = PINGPONG ? CONSUMERS : 1;                 // consumers that take tiles in turn
constexpr int ROWS = PINGPONG ? BM : BM / CONSUMERS;              // rows of a tile that a consumer has
constexpr int PARTS = ROWS / 64;                                  // products of 64 rows each
constexpr int THREADS = 128 * (CONSUMERS + 1);
#if KS_MAPPED_D  // is the output stored by the copy engine?
constexpr bool BULK = true;
static_assert(BUFFERS >= 2, "a piece is written while the one before it leaves");
#else
constexpr bool BULK = false;
#endif
constexpr int WIDTH = BULK && BN % 64 == 0 ? 64 : BN % 32 == 0 ? 32 : 16;  // columns of a piece of a finished tile
constexpr int B_WIDTH = KS_INNER_B_K ? BN : (BN + KS_BOX_INNER_B - 1) / KS_BOX_INNER_B * KS_BOX_INNER_B;  // columns loaded
constexpr int A_BYTES = BM * BK * 2, B_BYTES = B_WIDTH * BK * 2, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int DESTINATIONS = CM + CN - 1;  // blocks that get what one of them loads

static_assert(BM % (64 * (PINGPONG ? 1 : CONSUMERS)) == 0, "every consumer has whole products of 64 rows");
static_assert(BN % 16 == 0 && BN <= 256 && BK % 64 == 0, "a product has 16 to 256 columns; chunks of K are 64 wide");
static_assert(!COMBINE || CM * CN == 1, "a cluster either shares tiles or adds up slabs");
static_assert(PARTS * BN / 2 <= 216, "sums of a tile must fit the registers");
static_assert(sizeof(KS_TYPE_A) == 2 && sizeof(KS_TYPE_B) == 2, "operands of two bytes");

// Is the output contiguous along M, so that finished tiles are turned?
#if KS_PLAIN_out
constexpr bool TURNED = KS_CONTIGUOUS_out_M;
#else
constexpr bool TURNED = false;
#endif

// Barriers, 8 bytes each, lie at the start of shared memory; tiles follow at a multiple of 1024 bytes.
constexpr int FULL = 0, EMPTY = 8 * STAGES, READY = 16 * STAGES, FREE = READY + 8, TURN = FREE + 8;
constexpr int TILES = 1024;
constexpr int PIECES = TILES + STAGES * STAGE_BYTES;
static_assert(TURN + 8 * PARTIES <= TILES, "barriers take at most 1024 bytes");

// One tile of the output, or of a slab of it.
struct ks_tile {
    int m, n;          // first row and column
    int batch, slab;
    int first, last;   // steps of BK
};

// How many tiles there are, for blocks of a cluster together.
struct ks_tiles {
    int down, across, batches, total, steps;

    KS_DEVICE ks_tiles(const ks_args &x) {
        down = (int(ks_extent_M(x)) + BM * CM - 1) / (BM * CM);
        across = (int(ks_extent_N(x)) + BN * CN - 1) / (BN * CN);
        batches = int(ks_extent_B(x));
        steps = (int(ks_extent_K(x)) + BK - 1) / BK;
        total = down * across * batches * (COMBINE ? 1 : SPLIT);
    }

    // GROUP rows (columns, if ALONG) of tiles are walked together, so that blocks at work share operands in the cache.
    KS_DEVICE ks_tile at(int number, unsigned rank) const {
        const int plane = down * across, z = number / plane, rest = number % plane;
        const int major = KS_ALONG ? across : down, minor = KS_ALONG ? down : across;
        const int band = rest / (KS_GROUP * minor), start = band * KS_GROUP;
        const int high = ks_min(KS_GROUP, major - start), within = rest - start * minor;
        const int i = start + within % high, j = within / high;
        ks_tile t;
        const int row = KS_ALONG ? j : i, column = KS_ALONG ? i : j;
        t.m = (row * CM + (COMBINE ? 0 : int(rank) % CM)) * BM;
        t.n = (column * CN + (COMBINE ? 0 : int(rank) / CM)) * BN;
        t.batch = z % batches;
        t.slab = COMBINE ? int(rank) : z / batches;
        t.first = int((long long)steps * t.slab / SPLIT);
        t.last = int((long long)steps * (t.slab + 1) / SPLIT);
        if (t.first == t.last) t.first = steps, t.last = steps + 1;  // an empty slab: one tile of zeros from past the end
        return t;
    }
};

// A place in the ring of stages.
struct ks_ring {
    int stage = 0;
    unsigned phase = 0;

    KS_DEVICE void next() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    KS_DEVICE void skip(int steps) {
        const int at = stage + steps;
        phase ^= unsigned(at / STAGES) & 1;
        stage = at % STAGES;
    }
};
