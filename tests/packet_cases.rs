//! The cases of `packet_programs/fixtures/` and random packets, run in the kernel and on the host of `nodelb_programs`,
//! which must agree on the verdict, the bytes, the counts and the tables: the helpers behave as the host says. Needs root.
//!
//! The sequences of `packet_interference/` are played with the programs, too: `SEQUENCE_SEED=n` repeats a run, `SEQUENCE_CASES=n`
//! sets their number.
//!
//! `SOCKET_SEED=n` repeats a random run, `SOCKET_CASES=n` sets the number of its packets.

#[cfg(test)]
#[path = "packet_fixtures/case.rs"]
mod case;
#[cfg(test)]
#[path = "packet_cases/compared.rs"]
mod compared;
#[cfg(test)]
#[path = "packet_fixtures/damage.rs"]
mod damage;
#[cfg(test)]
#[path = "packet_interference/direct.rs"]
mod direct;
#[cfg(test)]
#[path = "packet_fixtures/frame.rs"]
mod frame;
#[cfg(test)]
#[path = "packet_interference/honest.rs"]
mod honest;
#[cfg(test)]
#[path = "packet_cases/kernel.rs"]
mod kernel;
#[cfg(test)]
#[path = "packet_interference/lab.rs"]
mod lab;
#[cfg(test)]
#[path = "packet_cases/network.rs"]
mod network;
#[cfg(test)]
#[path = "packet_interference/observed.rs"]
mod observed;
#[cfg(test)]
#[path = "packet_fixtures/print.rs"]
mod print;
#[cfg(test)]
#[path = "packet_cases/random.rs"]
mod random;
#[cfg(test)]
#[expect(dead_code, reason = "these programs are not attached to a cgroup")]
mod sandbox;
#[cfg(test)]
#[path = "packet_interference/sequence.rs"]
mod sequence;
#[cfg(test)]
#[path = "packet_cases/sequences.rs"]
mod sequences;
#[cfg(test)]
#[path = "packet_interference/socket.rs"]
mod socket;
#[cfg(test)]
#[path = "packet_interference/stack.rs"]
mod stack;
#[cfg(test)]
#[path = "packet_fixtures/steps.rs"]
mod steps;
#[cfg(test)]
#[path = "packet_interference/strangers.rs"]
mod strangers;
#[cfg(test)]
#[path = "packet_interference/tag.rs"]
mod tag;
#[cfg(test)]
#[path = "packet_interference/wire.rs"]
mod wire;
#[cfg(test)]
#[path = "packet_fixtures/world.rs"]
mod world;
#[cfg(test)]
#[path = "packet_cases/xdp.rs"]
mod xdp;
