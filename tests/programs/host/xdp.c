// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/* bpf/xdp.bpf.c as a unit. */
#include "unit.h"

#define const
#include "../../../bpf/xdp.bpf.c"
#undef const

void start_xdp_unit(void)
{
	ADD_PACKET_MAPS();
	MAP(xdp_devices, MAX_UPLINKS);
	MAP(passed_hops, PASSED_HOPS);
}

void set_xdp_constants(const struct constants *constants)
{
	SET_PACKET_CONSTANTS(constants);
}

int run_xdp_program(struct xdp_md *xdp)
{
	return xdp_in(xdp);
}
