/* The instructions of src/hopper/hopper.cuh on the emulated GPU. */
#ifndef H3_TESTS_CUDA_EMULATE_HOPPER_H
#define H3_TESTS_CUDA_EMULATE_HOPPER_H

#include <cuda.h>

#include "emulate_provider.h"

#define H3_HOPPER_CODE 1
#undef __grid_constant__
#define __grid_constant__
#define H3_SHARED_1024 char *shared = h3_shared_memory();

typedef uint64_t h3_barrier;

void h3_barrier_set(h3_barrier *barrier, unsigned arrivals);
inline void h3_barriers_are_set() {}
void h3_barrier_arrive(h3_barrier *barrier);
void h3_barrier_expect(h3_barrier *barrier, unsigned bytes);
void h3_barrier_wait(h3_barrier *barrier, unsigned parity);

void h3_cluster_meet();
void h3_barrier_arrive_at(h3_barrier *barrier, int block);

void h3_load_box(void *to, const CUtensorMap *map, int column, int row, h3_barrier *barrier);
void h3_load_box_into(unsigned blocks, void *to, const CUtensorMap *map, int column, int row, h3_barrier *barrier);
void h3_load_box(void *to, const CUtensorMap *map, int column, int row, int item, h3_barrier *barrier);
void h3_load_bytes(void *to, const void *from, unsigned bytes, h3_barrier *barrier);

uint64_t h3_operand(const void *tile);
void h3_steps_begin();
template <class T, int N> inline void h3_steps_keep(T (&)[N]) {}
template <int N> inline void h3_steps_define(uint32_t (&to)[N], const uint32_t (&from)[N]) { memcpy(to, from, sizeof to); }
/* One step: `a` by descriptor, or four words of each lane. */
struct h3_emulated_step {
    float *d;
    int columns;
    const uint32_t *registers; /* NULL: a is a descriptor */
    uint64_t a, b;
    bool add, half, a_along, b_along;
};
void h3_step_of(const h3_emulated_step &step);
template <bool HALF, int N, int A_ALONG, int B_ALONG> inline void h3_step(float (&d)[N / 2], uint64_t a, uint64_t b, int add)
{
    h3_step_of({d, N, nullptr, a, b, add != 0, HALF, A_ALONG != 0, B_ALONG != 0});
}
template <bool HALF, int N, int B_ALONG, int MANY> inline void h3_step_of_registers(float (&d)[N / 2], const uint32_t (&a)[MANY], int at, uint64_t b, int add)
{
    h3_step_of({d, N, a + at, 0, b, add != 0, HALF, false, B_ALONG != 0});
}
void h3_steps_close();
void h3_steps_wait_for(int groups);
template <int N> inline void h3_steps_wait() { h3_steps_wait_for(N); }

void h3_store_matrices(uint16_t *row, const uint32_t (&r)[4]);
void h3_store_matrices_turned(uint16_t *row, const uint32_t (&r)[2]);
template <int N> inline void h3_registers_fewer() { static_assert(N >= 24 && N <= 128 && N % 8 == 0, "setmaxnreg"); }
template <int N> inline void h3_registers_more() { static_assert(N >= 128 && N <= 256 && N % 8 == 0, "setmaxnreg"); }

#endif
