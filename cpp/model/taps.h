// Adds weights of recurrent mixers and short convolutions that operations need in another form than files have them.
#pragma once

namespace pumice::model {

class WeightReader;
struct Description;

// Adds the taps of convolutions to the description. Files have one row of taps per channel, and Conv needs one row of channels per tap. The
// taps of a recurrent mixer get the role scan_taps, and have the channels of q, of k and of v in this order. The taps of a short
// convolution get the role conv_taps. The function also converts the scan_rate of safetensors files, which is the logarithm of -rate, to
// the rate.
void add_taps(const WeightReader& reader, Description& d);

// Sets Description::key_norms, the weights of an rms norm of each head of q and k, so that this norm computes what the delta rule needs.
// For q, each weight is 1 / key_dim, so that the norm divides the head by its length and by sqrt(key_dim). For k, each weight is 1 /
// sqrt(key_dim), so that the norm divides the head by its length.
void add_key_norms(Description& d);

}  // namespace pumice::model
