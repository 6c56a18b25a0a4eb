// compensated: pieces of a long sum added up so that the error does not grow with their number.
//
// Follows W. Kahan, "Further remarks on reducing truncation errors", CACM 8(1), 1965.
#pragma once

#include "kernsearch.cuh"

// `part` added to `whole`; `lost` is what rounding has cost so far, of finite sums.
KS_DEVICE void ks_gather_sum(ks_acc &whole, ks_acc &lost, ks_acc part) {
    const ks_acc more = part - lost, now = whole + more, off = (now - whole) - more;
    lost = off == off ? off : ks_acc(0);
    whole = now;
}
KS_DEVICE void ks_gather_max(ks_acc &whole, ks_acc &, ks_acc part) { whole = ks_max(whole, part); }
