// Sums modulo p = 65521, for which 2^16 = 15.
#ifndef MKSEARCH_MODP
#define MKSEARCH_MODP

// Brings a sum of two limbs, low + 256 * high with both below 2^32, below 2^20; same residue.
__device__ __forceinline__ unsigned fold_limbs(unsigned low, unsigned high)
{
    const unsigned long long sum = low + 256ull * high;  // below 2^41
    const unsigned once = unsigned(sum & 0xffff) + 15u * unsigned(sum >> 16);  // below 2^29
    return (once & 0xffff) + 15u * (once >> 16);
}

// Brings any number below 2^20; same residue.
__device__ __forceinline__ unsigned fold(unsigned sum)
{
    return (sum & 0xffff) + 15u * (sum >> 16);
}

// Gives the residue of any number: 0 to p - 1.
__device__ __forceinline__ unsigned short residue(unsigned sum)
{
    const unsigned rest = fold(fold(sum));  // below 2 p
    return static_cast<unsigned short>(rest >= 65521u ? rest - 65521u : rest);
}

#endif
