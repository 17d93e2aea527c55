/* truth.h - the reference backend of the library, with which the draws of the other backends are compared. It stores all
 * logits of a row and has plain loops in double: it shares no kernel with them. All arrays lie in host memory. */
#ifndef FS_CLI_TRUTH_H
#define FS_CLI_TRUTH_H

#include "flashsampling.h"

/* fs_sample of one row and sample by the reference backend, whatever backend the environment forces; ends the program
 * where it fails. result.tokens may be NULL. */
void truth_sample(const fs_head *head, const fs_batch *batch, fs_result result);

/* x [head->rows] = the logits of the batch's first row as the head gives them. */
void truth_logits(const fs_head *head, const fs_batch *batch, float *x);

/* p [head->rows] = the probabilities with which the first row's rules draw each token. */
void truth_probabilities(const fs_head *head, const fs_batch *batch, double *p);

#endif
