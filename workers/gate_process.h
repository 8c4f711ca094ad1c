/* The gate's second, fresh process: the same candidate tensors, made again, must have the same digests. */
#ifndef H3_WORKERS_GATE_PROCESS_H
#define H3_WORKERS_GATE_PROCESS_H

#include "args.h"
#include "qualify/gate.h"

/* Starts this program again without MPI for the layouts of this rank and compares its digests with gate->digests; fills the process
 * cells of those layouts' records. `seconds`: how long this process took for more than that; a second one that needs ten times as long and
 * the watchdog's time more is stuck, H3_ENVIRONMENT. H3_INTEGRITY when the libraries' files have changed meanwhile. */
h3_status h3_gate_second_process(h3_gate *gate, const h3_args *args, h3_layout_record *layouts, int rank, int ranks, double seconds);

/* Collective: every rank has loaded the very files that rank 0 has. */
h3_status h3_gate_same_libraries(h3_ranks *ranks, const h3_library *provider, const h3_bindings *candidate);

/* What that process does (--internal-replay "RANK/RANKS"): prints digest lines and the libraries' hashes on stdout. */
h3_status h3_gate_replay(const h3_args *args);

#endif
