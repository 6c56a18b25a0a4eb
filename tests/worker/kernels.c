// Kernels that behave, and kernels that do not.

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernsearch.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

void add(const ks_call *call) {
    float *x = call->buffers[0];
    for (int64_t i = 0; i < call->sizes[0]; i++) x[i] += (float)call->scalars[0];
}

void add_second(const ks_call *call) {
    float *x = call->buffers[0], *y = call->buffers[1];
    for (int64_t i = 0; i < call->sizes[0]; i++) x[i] += y[i];
}

void segfault(const ks_call *call) {
    (void)call;
    *(volatile int *)8 = 1;
}

void hang(const ks_call *call) {
    (void)call;
    for (;;) __asm__ volatile("");
}

void stop_short(const ks_call *call) {
    (void)call;
    abort();
}

void leave(const ks_call *call) {
    (void)call;
    exit(0);
}

void close_all(const ks_call *call) {
    (void)call;
    for (int fd = 0; fd < 256; fd++) close(fd);
}

void write_all(const ks_call *call) {
    (void)call;
    for (int fd = 3; fd < 512; fd++)
        if (write(fd, "not a frame of the worker", 25) < 0) continue;
}

void forge_length(const ks_call *call) {
    (void)call;
    for (int fd = 3; fd < 512; fd++)
        if (write(fd, "ksw1\xff\xff\xff\xff{}", 10) < 0) continue;
}

void talk(const ks_call *call) {
    (void)call;
    for (int i = 0; i < 20000; i++) printf("a line that nobody asked for\n");
    fflush(stdout);
    fprintf(stderr, "nor this one\n");
}

void eat_memory(const ks_call *call) {
    (void)call;
    for (;;) {
        char *more = malloc(1 << 20);
        if (more) memset(more, 1, 1 << 20);
    }
}

void divide(const ks_call *call) {
    volatile int64_t zero = call->sizes[1];
    *(volatile int64_t *)call->buffers[0] = call->sizes[0] / zero;
}

void flush_subnormals(const ks_call *call) {
    (void)call;
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}

void cut_arena(const ks_call *call) {
    (void)call;
    for (int fd = 3; fd < 512; fd++)
        if (ftruncate(fd, 0) < 0) continue;
}

void nap_briefly(const ks_call *call) {
    usleep((unsigned)call->sizes[0]);
}

// A process that has left the session and the kernel's process; its id goes to x[0].
void breed(const ks_call *call) {
    volatile float *x = call->buffers[0];
    x[0] = 0;
    if (fork() == 0) {
        setsid();
        if (fork() == 0) {
            x[0] = (float)getpid();
            alarm(60);
            for (;;) pause();
        }
        _exit(0);
    }
    while (x[0] == 0) usleep(1000);
}
