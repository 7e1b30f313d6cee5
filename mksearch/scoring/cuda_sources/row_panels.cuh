// Rows times a few vectors, panel by panel, modulo p: as fast as memory is read.
//
// LANES (8, 16 or 32) neighbouring threads share ROWS rows.  Each reads 16 bytes, 8 cells, of every
// row at a time, and multiplies them with BATCH vectors.  The entries of a vector are cut into bytes
// (cuda_kernels._pack_bytes), so that one instruction multiplies two cells and adds both products.
// A 32-bit sum holds 128 of these before it goes into a residue; the dedicated panel is summed once.
#ifndef MKSEARCH_MODP
#include "modp.cuh"
#endif

// Steps of 16 bytes that a 32-bit sum holds: 2^32 / (2 * 65520 * 255) pairs, 4 pairs a step.
#define STEPS 32
// Registers allow few steps at once where there are many sums.
constexpr int AT_ONCE = ROWS * BATCH <= 4 ? 4 : ROWS * BATCH <= 8 ? 2 : 1;

// cells: (n_rows, columns); vectors: (BATCH, columns), padded with zeros; out: (n_vectors, n_rows,
// n_tables).  n_rows is at least 1; widths are multiples of 64.
extern "C" __global__ void __launch_bounds__(256, 2) row_panels(
    const uint4* __restrict__ cells, const uint4* __restrict__ vectors, unsigned short* out,
    int n_rows, int n_vectors, int dedicated, int table, int n_tables)
{
    const int lane = threadIdx.x % LANES;
    const int columns = (dedicated + n_tables * table) / 8;
    const long long first =
        ((long long)blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES) * ROWS;

    // Rows beyond the last are that one again, and are not written: all threads stay together.
    const uint4* row[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        row[r] = cells + (first + r < n_rows ? first + r : n_rows - 1) * columns;

    unsigned shared[ROWS][BATCH];
#pragma unroll 1
    for (int panel = -1; panel < n_tables; panel++) {
        const int begin = panel < 0 ? 0 : (dedicated + panel * table) / 8;
        const int end = begin + (panel < 0 ? dedicated : table) / 8;
        unsigned total[ROWS][BATCH] = {};
#pragma unroll 1
        for (int start = begin; start < end; start += STEPS * LANES) {
            const int stop = start + STEPS * LANES < end ? start + STEPS * LANES : end;
            unsigned low[ROWS][BATCH] = {}, high[ROWS][BATCH] = {};
#pragma unroll AT_ONCE
            for (int at = start + lane; at < stop; at += LANES) {
                uint4 cell[ROWS];
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    cell[r] = __ldcs(row[r] + at);
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
                    const uint4 entry = __ldg(vectors + (long long)b * columns + at);
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        low[r][b] = __dp2a_lo(cell[r].x, entry.x, low[r][b]);
                        high[r][b] = __dp2a_hi(cell[r].x, entry.x, high[r][b]);
                        low[r][b] = __dp2a_lo(cell[r].y, entry.y, low[r][b]);
                        high[r][b] = __dp2a_hi(cell[r].y, entry.y, high[r][b]);
                        low[r][b] = __dp2a_lo(cell[r].z, entry.z, low[r][b]);
                        high[r][b] = __dp2a_hi(cell[r].z, entry.z, high[r][b]);
                        low[r][b] = __dp2a_lo(cell[r].w, entry.w, low[r][b]);
                        high[r][b] = __dp2a_hi(cell[r].w, entry.w, high[r][b]);
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int b = 0; b < BATCH; b++)
                    total[r][b] = fold(total[r][b] + fold_limbs(low[r][b], high[r][b]));
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
#pragma unroll
                for (int other = LANES / 2; other; other /= 2)
                    total[r][b] += __shfl_xor_sync(0xffffffffu, total[r][b], other);
                if (panel < 0)
                    shared[r][b] = total[r][b];
                else if (lane == (r * BATCH + b) % LANES && first + r < n_rows && b < n_vectors)
                    out[((long long)b * n_rows + first + r) * n_tables + panel] =
                        residue(shared[r][b] + total[r][b]);
            }
    }
}
