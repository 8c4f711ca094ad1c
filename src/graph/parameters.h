/* Parameters on their way to a device: made there when they are synthetic, else from the checkpoint's mapped bytes. */
#ifndef H3_GRAPH_PARAMETERS_H
#define H3_GRAPH_PARAMETERS_H

#include "graph/device.h"
#include "model/weights.h"

/* A new device tensor of parameter `name` in `dtype`: its stored type, or F32 for a stored BF16. */
h3_status h3_parameter_load(h3_tensor *out, const h3_device *device, const h3_weights *weights, const char *name, int32_t dtype);

#endif
