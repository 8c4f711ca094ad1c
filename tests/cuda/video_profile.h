/* Where a decode's time goes: a table of operations that measures another one. */
#ifndef H3_TESTS_VIDEO_PROFILE_H
#define H3_TESTS_VIDEO_PROFILE_H

#include "media/video_ops.h"

/* Operations that do what `ops` does on `device`, with an event of the device's stream before and behind each. Starts an empty measurement. What they
 * cost themselves (two events an operation, some microseconds) is in the wall time, not in an operation's. */
const h3_video_ops *video_profile_start(const h3_video_ops *ops, const h3_device *device);

/* Waits for the device and prints one line a kind of operation, the longest first: calls, seconds, share of `wall` seconds, and what it reached; products
 * by channels and columns, convolutions by channels, columns and kernel. The last lines: the time outside all operations, and the whole. Returns
 * how many seconds the operations took; NaN when none was measured. */
double video_profile_print(double wall);

#endif
