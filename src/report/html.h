/* The two halves of report.html. */
#ifndef H3_REPORT_HTML_H
#define H3_REPORT_HTML_H

#include "report/data.h"

/* Tables below the pictures, folded away: stages, nodes, operators, closest figures, blocks, comparison, drifts, model. */
void h3_report_details(h3_markup *out, const h3_report_data *data);

#endif
