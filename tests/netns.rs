//! Real sockets in network namespaces through the real daemon: what a program on the node observes
//! while nodelb starts, changes, dies and restarts. Needs root; every test has its own namespaces,
//! bpffs and cgroup.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should stop where it is")]

mod crash_points;
mod extent;
mod forward;
mod links;
mod memory_maps;
mod model;
mod pod;
mod reach;
mod sandbox;

#[path = "netns/host.rs"]
mod host;

#[path = "scenarios/environment.rs"]
mod environment;
#[path = "packet_fixtures/frame.rs"]
mod frame;
#[path = "conformance/health_check_server.rs"]
mod health_check_server;
#[path = "conformance/maps.rs"]
mod maps;
#[path = "scenarios/outside_model.rs"]
mod outside_model;
#[path = "scenarios/run.rs"]
mod run;
#[path = "scenarios/runner.rs"]
mod runner;
#[path = "scenarios/script.rs"]
mod script;
#[path = "scenarios/settings.rs"]
mod settings;
#[path = "scenarios/status.rs"]
mod status;
#[expect(dead_code, reason = "a flood only sends")]
#[path = "packet_interference/wire.rs"]
mod wire;
#[path = "packet_fixtures/world.rs"]
mod world;

#[path = "netns/cluster.rs"]
mod cluster;
#[path = "netns/flood.rs"]
mod flood;
#[path = "netns/flood_counts.rs"]
mod flood_counts;
#[path = "interference/mod.rs"]
mod interference;
#[path = "netns/lab.rs"]
mod lab;
#[path = "netns/lab_services.rs"]
mod lab_services;
#[path = "netns/network.rs"]
mod network;
#[path = "netns/remedies.rs"]
mod remedies;
#[path = "netns/seeded.rs"]
mod seeded;
#[path = "netns/servers.rs"]
mod servers;
#[path = "netns/stub_resolver.rs"]
mod stub_resolver;
#[path = "netns/talk.rs"]
mod talk;

#[path = "netns/addresses.rs"]
mod addresses;
#[path = "netns/apiserver_incident.rs"]
mod apiserver_incident;
#[path = "netns/clients.rs"]
mod clients;
#[path = "netns/continuity.rs"]
mod continuity;
#[path = "netns/crash.rs"]
mod crash;
#[path = "netns/credentials.rs"]
mod credentials;
#[path = "netns/diagnose.rs"]
mod diagnose;
#[path = "netns/diff.rs"]
mod diff;
#[path = "netns/dns.rs"]
mod dns;
#[path = "netns/drain.rs"]
mod drain;
#[path = "netns/drift.rs"]
mod drift;
#[path = "netns/failover.rs"]
mod failover;
#[path = "netns/fleet.rs"]
mod fleet;
#[path = "netns/fleet_failover.rs"]
mod fleet_failover;
#[path = "netns/fleet_hosts.rs"]
mod fleet_hosts;
#[path = "netns/hangs.rs"]
mod hangs;
#[path = "netns/health.rs"]
mod health;
#[path = "netns/health_check_node_port.rs"]
mod health_check_node_port;
#[path = "netns/history.rs"]
mod history;
#[path = "netns/incident.rs"]
mod incident;
#[path = "netns/limits.rs"]
mod limits;
#[path = "netns/listeners.rs"]
mod listeners;
#[path = "netns/nodeports.rs"]
mod nodeports;
#[path = "netns/non_interference.rs"]
mod non_interference;
#[path = "netns/numbers.rs"]
mod numbers;
#[path = "netns/other_programs.rs"]
mod other_programs;
#[path = "netns/outage.rs"]
mod outage;
#[path = "netns/outside.rs"]
mod outside;
#[path = "netns/outside_changes.rs"]
mod outside_changes;
#[path = "netns/outside_coexistence.rs"]
mod outside_coexistence;
#[path = "netns/outside_continuity.rs"]
mod outside_continuity;
#[path = "netns/outside_devices.rs"]
mod outside_devices;
#[path = "netns/outside_direct.rs"]
mod outside_direct;
#[path = "netns/outside_direct_continuity.rs"]
mod outside_direct_continuity;
#[path = "netns/outside_disagree.rs"]
mod outside_disagree;
#[path = "netns/outside_ecmp.rs"]
mod outside_ecmp;
#[path = "netns/outside_flood.rs"]
mod outside_flood;
#[path = "netns/outside_flows.rs"]
mod outside_flows;
#[path = "netns/outside_hand_over.rs"]
mod outside_hand_over;
#[path = "netns/outside_ipsec.rs"]
mod outside_ipsec;
#[path = "netns/outside_load.rs"]
mod outside_load;
#[path = "netns/outside_more.rs"]
mod outside_more;
#[path = "netns/outside_network.rs"]
mod outside_network;
#[path = "netns/outside_own_addresses.rs"]
mod outside_own_addresses;
#[path = "netns/outside_pods.rs"]
mod outside_pods;
#[path = "netns/outside_protocols.rs"]
mod outside_protocols;
#[path = "netns/outside_scenarios.rs"]
mod outside_scenarios;
#[path = "netns/outside_unanswered.rs"]
mod outside_unanswered;
#[path = "netns/outside_watch.rs"]
mod outside_watch;
#[path = "netns/outside_xdp.rs"]
mod outside_xdp;
#[path = "netns/privilege.rs"]
mod privilege;
#[path = "netns/reaper.rs"]
mod reaper;
#[path = "netns/scopes.rs"]
mod scopes;
#[path = "netns/setuid.rs"]
mod setuid;
#[path = "netns/stale_sockets.rs"]
mod stale_sockets;
#[path = "netns/traffic.rs"]
mod traffic;
#[path = "netns/truth.rs"]
mod truth;
#[path = "netns/twins.rs"]
mod twins;
#[path = "netns/unbound.rs"]
mod unbound;
#[path = "netns/upgrade.rs"]
mod upgrade;
#[path = "netns/ways.rs"]
mod ways;
#[path = "netns/without_daemon.rs"]
mod without_daemon;
