#include "turns.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

turns take_turns(int rounds, double (*time)(const void *what, int own), const void *what)
{
    double own[MOST_TURNS], theirs[MOST_TURNS + 1], ratio[MOST_TURNS];
    for (int i = 0; i <= rounds; i++) {
        theirs[i] = time(what, 0);
        if (i < rounds) own[i] = time(what, 1);
    }
    for (int i = 0; i < rounds; i++) ratio[i] = 2.0 * own[i] / (theirs[i] + theirs[i + 1]);
    return (turns){median(own, rounds), median(theirs, rounds + 1), median(ratio, rounds)};
}
