// Enough of CUDA to run a kernel of mksearch/scoring/cuda_sources on the processor, warp by warp.
//
// Each thread of a warp is a fiber that runs to its next exchange with the others (a shuffle, a
// product on the matrix units) and waits there.  What a GPU would do undefined things for is found
// instead: threads of a warp that wait at different exchanges, and reads outside of an input.  What
// this does not have: blocks whose threads wait for each other, shared memory, races, speed.
#pragma once
#include <cstdint>
#include <cstdio>
#include <csetjmp>
#include <cstring>
#include <ucontext.h>
#include <vector>

#define MKSEARCH_ON_CPU
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

struct uint4 {
    unsigned x, y, z, w;
};
struct Place {
    unsigned x;
};

namespace on_cpu {

constexpr int WARP = 32;
constexpr size_t STACK_BYTES = 1 << 16;

// A context is made once for each thread; changing between them needs no call of the system.
struct Fiber {
    ucontext_t context;
    jmp_buf place;
    bool is_new = true;
    std::vector<char> stack = std::vector<char>(STACK_BYTES);
    bool is_done = true;
    int waits_at = 0;
    unsigned shown[6] = {};
};

struct Range {
    const char* begin;
    const char* end;
};

inline ucontext_t before;
inline jmp_buf scheduler;
inline Fiber warp[WARP];
inline Fiber* current;
inline Place thread, block, block_size;
inline unsigned first_thread;
inline void (*body)();
inline std::vector<Range> inputs;
inline const char* fault;

inline void fail(const char* what)
{
    if (!fault)
        fault = what;
}

inline int lane() { return int(current - warp); }

inline void wait(int where)
{
    current->waits_at = where;
    if (!_setjmp(current->place))
        _longjmp(scheduler, 1);
    thread.x = first_thread + unsigned(lane());
}

inline void enter()
{
    body();
    current->is_done = true;
    _longjmp(scheduler, 1);
}

// Runs a thread to its next exchange, or to its end.
inline void go_on(Fiber* fiber)
{
    current = fiber;
    if (_setjmp(scheduler))
        return;
    if (fiber->is_new) {
        fiber->is_new = false;
        setcontext(&fiber->context);
    }
    _longjmp(fiber->place, 1);
}

inline void run_warp(unsigned n_threads)
{
    for (unsigned n = 0; n < n_threads; n++) {
        Fiber& fiber = warp[n];
        fiber.is_done = false;
        fiber.is_new = true;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = &before;
        makecontext(&fiber.context, enter, 0);
    }
    for (unsigned n_running = n_threads; n_running;) {
        n_running = 0;
        int where = -1;
        for (unsigned n = 0; n < n_threads; n++) {
            if (warp[n].is_done)
                continue;
            thread.x = first_thread + n;
            go_on(&warp[n]);
            if (warp[n].is_done)
                continue;
            n_running++;
            if (where >= 0 && where != current->waits_at)
                fail("threads of a warp wait at different exchanges");
            where = current->waits_at;
        }
        if (n_running && n_running != n_threads)
            fail("some threads of a warp have ended while others exchange");
        if (fault)
            return;
    }
}

inline const char* launch(unsigned n_blocks, unsigned n_threads, void (*kernel)())
{
    fault = nullptr;
    body = kernel;
    block_size.x = n_threads;
    for (block.x = 0; block.x < n_blocks && !fault; block.x++)
        for (first_thread = 0; first_thread < n_threads && !fault; first_thread += WARP)
            run_warp(n_threads - first_thread < WARP ? n_threads - first_thread : WARP);
    return fault;
}

template <class T> T load(const T* from)
{
    const char* begin = reinterpret_cast<const char*>(from);
    if (reinterpret_cast<uintptr_t>(from) % sizeof(T))
        fail("a load is not aligned");
    for (const Range& range : inputs)
        if (range.begin <= begin && begin + sizeof(T) <= range.end) {
            T value;
            memcpy(&value, from, sizeof value);
            return value;
        }
    fail("a load is outside of every input");
    return T();
}

// Adds two products of a 16-bit and an 8-bit number, as the GPU does: modulo 2^32.
inline unsigned add_pair(unsigned cells, unsigned bytes, unsigned sum)
{
    const uint64_t wide = sum + uint64_t(cells & 0xffff) * (bytes & 0xff) +
                          uint64_t(cells >> 16) * (bytes >> 8 & 0xff);
    if (wide >> 32)
        fail("an unsigned 32-bit sum overflows");
    return unsigned(wide);
}

}  // namespace on_cpu

#define threadIdx (on_cpu::thread)
#define blockIdx (on_cpu::block)
#define blockDim (on_cpu::block_size)

inline uint4 __ldg(const uint4* from) { return on_cpu::load(from); }
inline uint4 __ldcs(const uint4* from) { return on_cpu::load(from); }

inline unsigned __dp2a_lo(unsigned a, unsigned b, unsigned c) { return on_cpu::add_pair(a, b, c); }
inline unsigned __dp2a_hi(unsigned a, unsigned b, unsigned c)
{
    return on_cpu::add_pair(a, b >> 16, c);
}

inline unsigned __shfl_xor_sync(unsigned mask, unsigned value, int other)
{
    using namespace on_cpu;
    if (mask != 0xffffffffu)
        fail("a shuffle is not of the whole warp");
    const int from = lane() ^ other;
    current->shown[0] = value;
    wait(1);
    const unsigned seen = warp[from].shown[0];
    wait(2);
    return seen;
}

// Thread 4 g + m holds of a 16 x 32 piece the bytes 4 m.. and 16 + 4 m.. of rows g and g + 8, of a
// 32 x 8 piece the same bytes of column g, and of the sums columns 2 m and 2 m + 1 of rows g, g + 8.
inline void multiply_bytes(
    int (&sums)[4], unsigned row, unsigned row_8, unsigned row_far, unsigned row_8_far,
    unsigned column, unsigned column_far)
{
    using namespace on_cpu;
    const unsigned own[6] = {row, row_8, row_far, row_8_far, column, column_far};
    memcpy(current->shown, own, sizeof own);
    wait(3);
    const int g = lane() / 4, m = lane() % 4;
    for (int n = 0; n < 4; n++) {
        int64_t sum = sums[n];
        for (int k = 0; k < 32; k++) {
            const int holder = k % 16 / 4, word = k / 16, bits = 8 * (k % 4);
            const unsigned a = warp[4 * g + holder].shown[n / 2 + 2 * word];
            const unsigned b = warp[4 * (2 * m + n % 2) + holder].shown[4 + word];
            sum += int64_t(a >> bits & 0xff) * (b >> bits & 0xff);
        }
        if (sum > INT32_MAX)
            fail("a signed 32-bit sum overflows");
        sums[n] = int(sum);
    }
    wait(4);
}
