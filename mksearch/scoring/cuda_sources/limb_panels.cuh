// Rows times many vectors, panel by panel, modulo p: on the matrix units, in bytes.
//
// A row in memory is 2 * columns bytes: low, high, low, high.  Every vector becomes two columns of
// as many bytes (cuda_kernels._pack_limbs) whose products with a row, low and high, give
// low + 256 * high = the sum modulo p: nothing of a row is taken apart.  One warp multiplies
// 16 * ROW_TILES rows with 8 * COLUMN_TILES columns, 4 * COLUMN_TILES vectors.  The order of bytes in
// a sum is free, so that each thread reads 16 bytes in a piece and gives them to the matrix units in
// two parts.  A 32-bit sum holds 512 steps of 64 bytes before it goes into a residue.
#ifndef MKSEARCH_MODP
#include "modp.cuh"
#endif

// Steps of 64 bytes that a signed 32-bit sum holds: 2^31 / 255^2 bytes.
#define STEPS 512

#ifndef MKSEARCH_ON_CPU
// Adds a 16 x 32 piece of rows times a 32 x 8 piece of columns to 16 x 8 sums.
__device__ __forceinline__ void multiply_bytes(
    int (&sums)[4], unsigned row, unsigned row_8, unsigned row_far, unsigned row_8_far,
    unsigned column, unsigned column_far)
{
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
        : "r"(row), "r"(row_8), "r"(row_far), "r"(row_8_far), "r"(column), "r"(column_far));
}
#endif

// Adds two pairs of residues, each in the halves of a word.
__device__ __forceinline__ unsigned add_pairs(unsigned left, unsigned right)
{
    return residue((left & 0xffff) + (right & 0xffff)) |
           unsigned(residue((left >> 16) + (right >> 16))) << 16;
}

// cells: (n_rows, columns); vectors: bytes (2 * padded, 2 * columns), vectors padded with zeros to a
// multiple of 4 * COLUMN_TILES; out: (n_vectors, n_rows, n_tables).  n_rows is at least 1; widths are
// multiples of 64.  As many warps as row tiles times column tiles, or more.
extern "C" __global__ void __launch_bounds__(128) limb_panels(
    const uint4* __restrict__ cells, const uint4* __restrict__ vectors, unsigned short* out,
    int n_rows, int n_vectors, int dedicated, int table, int n_tables)
{
    const int lane = threadIdx.x % 32;
    const int group = lane / 4, member = lane % 4;
    const int columns = (dedicated + n_tables * table) / 8;
    const int vectors_a_warp = 4 * COLUMN_TILES;
    const int n_pieces = (n_vectors + vectors_a_warp - 1) / vectors_a_warp;
    const long long warp = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    // Neighbouring warps take the same rows, which come from memory once.
    const long long first_row = warp / n_pieces * (16 * ROW_TILES);
    const int first_vector = int(warp % n_pieces) * vectors_a_warp;
    if (first_row >= n_rows)
        return;

    const uint4* row[ROW_TILES][2];
    const uint4* column[COLUMN_TILES];
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const long long r = first_row + 16 * m + 8 * half + group;
            row[m][half] = cells + (r < n_rows ? r : n_rows - 1) * columns + member;
        }
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n++)
        column[n] = vectors + (2ll * first_vector + 8 * n + group) * columns + member;

    // Of each tile this thread has two rows of one vector: two residues in one register.
    unsigned shared[ROW_TILES][COLUMN_TILES];
#pragma unroll 1
    for (int panel = -1; panel < n_tables; panel++) {
        const int begin = panel < 0 ? 0 : (dedicated + panel * table) / 8;
        const int end = begin + (panel < 0 ? dedicated : table) / 8;
        unsigned total[ROW_TILES][COLUMN_TILES] = {};
#pragma unroll 1
        for (int start = begin; start < end; start += 4 * STEPS) {
            const int stop = start + 4 * STEPS < end ? start + 4 * STEPS : end;
            int sums[ROW_TILES][COLUMN_TILES][4] = {};
#pragma unroll 1
            for (int at = start; at < stop; at += 4) {
                uint4 right[COLUMN_TILES];
#pragma unroll
                for (int n = 0; n < COLUMN_TILES; n++)
                    right[n] = __ldg(column[n] + at);
#pragma unroll
                for (int m = 0; m < ROW_TILES; m++) {
                    const uint4 above = __ldg(row[m][0] + at), below = __ldg(row[m][1] + at);
#pragma unroll
                    for (int n = 0; n < COLUMN_TILES; n++) {
                        multiply_bytes(sums[m][n], above.x, below.x, above.y, below.y,
                                       right[n].x, right[n].y);
                        multiply_bytes(sums[m][n], above.z, below.z, above.w, below.w,
                                       right[n].z, right[n].w);
                    }
                }
            }
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
                for (int n = 0; n < COLUMN_TILES; n++)
                    total[m][n] = add_pairs(
                        total[m][n],
                        residue(fold_limbs(sums[m][n][0], sums[m][n][1])) |
                            unsigned(residue(fold_limbs(sums[m][n][2], sums[m][n][3]))) << 16);
        }
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n++) {
                if (panel < 0) {
                    shared[m][n] = total[m][n];
                    continue;
                }
                const unsigned both = add_pairs(shared[m][n], total[m][n]);
                const int b = first_vector + 4 * n + member;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const long long r = first_row + 16 * m + 8 * half + group;
                    if (r < n_rows && b < n_vectors)
                        out[(b * (long long)n_rows + r) * n_tables + panel] =
                            static_cast<unsigned short>(both >> 16 * half);
                }
            }
    }
}
