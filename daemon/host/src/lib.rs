//! What nodelb uses of this machine, apart from BPF: the [`clock`], [`threads`] for work that may block forever, the files
//! of the state directory ([`state_file`]) and those that cannot be written ([`unwritten`]), its own sockets
//! ([`register`]), other sockets ([`sock_diag`]) over [`netlink`], and the ids of its [`messages`] in the journal. Knows
//! neither services nor Kubernetes, and depends on no other package of nodelb.
//!
//! ```text
//!  threads, messages, unwritten <── state_file        netlink <── sock_diag        clock        register
//! ```

#![forbid(unsafe_code)]

pub mod cgroup;
pub mod clock;
pub mod lines;
pub mod messages;
pub mod netlink;
pub mod register;
pub mod sock_diag;
pub mod state_file;
pub mod threads;
pub mod unwritten;
