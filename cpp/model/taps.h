// Weights of recurrent mixers and short convolutions that operations need in another form than files have them.
#pragma once

namespace pumice::model {

class WeightReader;
struct Description;

// Reads the taps of convolutions. Files have a row of taps for each channel, and Conv needs a row of channels for each tap. For a recurrent
// mixer the channels are those of q, k and v, in this order, and the vector has the role scan_taps; for a short convolution it has the role
// conv_taps. Also turns each scan_rate of a safetensors file, which is the logarithm of -rate, into the rate.
void add_taps(const WeightReader& reader, Description& d);

// Sets Description::key_norms: the weights with which an rms norm of each head gives what the delta rule needs of q and k. For q they are
// 1 / key_dim, so that a head is divided by its length and by sqrt(key_dim); for k they are 1 / sqrt(key_dim).
void add_key_norms(Description& d);

}  // namespace pumice::model
