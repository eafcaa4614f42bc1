"""Files of many requests, one a line, and the files of their answers: `pumice run`, and the batches of `pumice serve`."""
