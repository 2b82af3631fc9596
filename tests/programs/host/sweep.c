// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/* bpf/sweep.bpf.c as a unit. */
#include "unit.h"

#define const
#include "../../../bpf/sweep.bpf.c"
#undef const

#define MOST_RECORDS 4096

void start_sweep_unit(void)
{
	ADD_SHARED_MAPS();
	MAP(sweep_timeouts, 1);
	MAP(sweep_scratch, 1);
	MAP(sweep_records, MOST_RECORDS);
	MAP(sweep_outcomes, MOST_OUTCOMES);
}

uint32_t run_sweep(void)
{
	return sweep_connections(NULL) + sweep_half_open(NULL);
}
