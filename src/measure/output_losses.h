// What the outputs of linears lose on a text. Every linear, of the original and of each quantized checkpoint, reads the
// same activations: those of the original, divided by s where the checkpoint is smoothed. So the loss is of this layer
// alone, of its weights and of its activations, not of the layers before it.
#pragma once

#include "base/progress.h"
#include "kvant/status.h"
#include "measure/comparison.h"
#include "model/token_text.h"

namespace kvant::measure {

// Sets output_sqnr_db of every layer of `comparison`: 10 log10(sum(y^2) / sum((y - y')^2)) over all tokens and output
// channels, y of the original and y' of the checkpoint. The checkpoints are read again from where compare() found them.
// `threads` 0: all. The same bits for any number of threads.
Status measure_outputs(const model::TokenText& text, int threads, Comparison& comparison, base::Progress& progress);

}  // namespace kvant::measure
