/* Times of two kernels that do the same, taken in turns, so that both meet the same clocks. */
#ifndef H3_TESTS_CUDA_TURNS_H
#define H3_TESTS_CUDA_TURNS_H

/* Medians in milliseconds, and that of the ratios: each of ours over the mean of the two of theirs around it. */
typedef struct turns {
    double own, theirs, ratio;
} turns;

enum { MOST_TURNS = 9 };
/* `rounds` of ours, at most MOST_TURNS, between one more of theirs; `time`: milliseconds of one of ours, or of theirs. */
turns take_turns(int rounds, double (*time)(const void *what, int own), const void *what);

#endif
