/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Types, codes and fields of ICMP and ICMPv6.
 */
#ifndef NODELB_ICMP_TYPES_H
#define NODELB_ICMP_TYPES_H

/* From <linux/icmp.h> and <linux/icmpv6.h>, which need headers of libc. */
#define ICMP_ECHOREPLY 0
#define ICMP_DEST_UNREACH 3
#define ICMP_NET_UNREACH 0
#define ICMP_HOST_UNREACH 1
#define ICMP_PORT_UNREACH 3
#define ICMP_FRAG_NEEDED 4
#define ICMP_ECHO 8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12
#define ICMPV6_DEST_UNREACH 1
#define ICMPV6_NOROUTE 0
#define ICMPV6_ADDR_UNREACH 3
#define ICMPV6_PORT_UNREACH 4
#define ICMPV6_PKT_TOOBIG 2
#define ICMPV6_TIME_EXCEED 3
#define ICMPV6_PARAMPROB 4
#define ICMPV6_UNKNOWN_NEXTHDR 1
#define ICMPV6_ECHO_REQUEST 128
#define ICMPV6_ECHO_REPLY 129
#define ICMP_HEADER_LENGTH 8
#define ICMP_CHECK_OFFSET 2

#endif
