// draw: rows of logits to tokens (kernels/draws/draw.h), in as few launches as the rows allow. Each has a block for each chunk of 4,096 ids
// of a row; a row's last block goes on with what the others have found (last_block.h).
//
// DrawScanKernel reads the logits, changes them by masks, bias and penalties, and draws rows that are greedy or have nothing but a
// temperature: each chunk has its own race, whose score alone decides.
// FilterKernel, a block a row: the filters of rows that have more than temperature, min-p, top-k and top-p in this order.
// DrawMassKernel and DrawGatherKernel: what min-p, top-k and top-p cut. They read the logits once each, the first for top-p without top-k.
// VerifyKernel, a block a row: the drafted tokens of rows that have any.
#pragma once

#include "kernels/cuda/draw_gather_kernel.h"
#include "kernels/cuda/draw_scan_kernel.h"
#include "kernels/cuda/filter_kernel.h"
#include "kernels/cuda/verify_kernel.h"
