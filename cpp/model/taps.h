// Adds weights of recurrent mixers and short convolutions that operations need in another form than files have.
#pragma once

namespace pumice::model {

class WeightReader;
struct Description;

// Adds the taps of convolutions to the description. Files have one row of taps per channel, and Conv needs one row of channels per tap. The
// channels of a recurrent mixer's convolution are those of q, k and v, in this order, and the vector gets the role scan_taps. The vector of
// a short convolution gets the role conv_taps. The function also converts each scan_rate of a safetensors file, which is the logarithm of
// -rate, to the rate.
void add_taps(const WeightReader& reader, Description& d);

// Sets Description::key_norms. With these weights, an rms norm of each head of q and k computes what the delta rule needs: the weights for
// q are 1 / key_dim, so that the head is divided by its length and by sqrt(key_dim); the weights for k are 1 / sqrt(key_dim), so that the
// head is divided by its length.
void add_key_norms(Description& d);

}  // namespace pumice::model
