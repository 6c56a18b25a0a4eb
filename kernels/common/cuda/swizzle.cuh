// Where 16-byte pieces of a row-major tile lie in shared memory.
//
// Rows are as long as the tile is wide, without padding, and the piece's number is mixed with the row's: the same piece
// of 8 neighbouring rows, and the 8 pieces of any 128 bytes of a row, all lie in different banks. So ldmatrix (8 rows,
// one piece) and stores by neighbouring threads (one row, all pieces) both run without conflicts.

#pragma once

// Byte offset of a piece of a row, in a tile whose rows are Pieces pieces: a power of two, or a multiple of 8.
template <int Pieces>
KS_DEVICE int ks_place(int row, int piece) {
    static_assert((Pieces & (Pieces - 1)) == 0 || Pieces % 8 == 0, "a row is not a power of two or whole 128 bytes");
    constexpr int rows = Pieces >= 8 ? 1 : 8 / Pieces;  // that share 128 bytes
    constexpr int mask = Pieces >= 8 ? 7 : Pieces - 1;
    return row * (Pieces * 16) + ((piece ^ (row / rows & mask)) << 4);
}
