/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Names the conditions that keep strangers from changing what honest parties
 * observe, and those that keep nodelb from doing so. RULE() is its condition.
 * tests/programs compiles the programs for tests, where any one rule can be
 * removed: its condition then counts as true. What only a removed rule does has
 * the condition false.
 */
#ifndef NODELB_RULE_H
#define NODELB_RULE_H

#ifndef RULE
#define RULE(name, condition) (condition)
#endif

#endif
