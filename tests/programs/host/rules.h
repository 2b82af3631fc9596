/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The rules of bpf/rule.h that a test can remove, in the order of their
 * numbers, which begin at 1. bpf/ has RULE(name, condition) for each.
 */
#define RULES(rule)                                                                                                   \
	rule(client_reset_in_window) rule(backend_reset_in_window) rule(fin_in_window) rule(reset_taken_back)         \
	    rule(acknowledgment_in_window) rule(answer_by_acknowledgment) rule(proof_by_acknowledgment)               \
		rule(unknown_is_owned) rule(reverse_path) rule(answers_by_service) rule(fragment_ids)                 \
		    rule(syn_of_answered_connection) rule(silence_after_question) rule(flow_admitted_again)           \
			rule(pods_share_nothing) rule(udp_has_half) rule(flows_give_way) rule(active_flow_keeps_port) \
			    rule(stack_takes_port) rule(answer_of_ended_connection) rule(stack_gets_other_port)       \
				rule(client_gets_other_port) rule(syn_of_forwarded_connection)                        \
				    rule(far_number_is_doubted) rule(idle_connection_stays) rule(forwarded_by_ring)   \
					rule(sent_on_by_ring) rule(unwrapped_stays) rule(only_own_tunnels)            \
					    rule(served_source) rule(priority_tags) rule(owned_addresses)             \
						rule(sockets_keep_ports) rule(credible_errors)                        \
						    rule(process_gets_answers) rule(direct_keeps_port)                \
							rule(reverse_path_of_flows) rule(errors_fit)                  \
							    rule(flows_give_way_last) rule(tunnel_sources)
