//! The kernel features that nodelb requires, and those that it uses if they exist. This is the only table of them: the lines at start, `/status` and `docs/kernels.md` are generated from it.
//! [`crate::probe`] finds features by trying them; the versions are only information for users.

use std::collections::BTreeSet;
use std::fmt;

/// The first kernel.org kernel with a feature. Distributions backport features to older kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Since(pub u8, pub u8);

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linux {}.{}", self.0, self.1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// A refused connect returns a meaningful error.
    RefuseConnect,
    RefuseBind,
    /// Programs can recognise the network namespace of this process.
    Netns,
    Mptcp,
    /// The daemon can list the sockets that are connected to backends.
    Flows,
    /// The daemon can end the sockets of other processes.
    EndSockets,
    /// The daemon can write maps without a capability.
    NoCapability,
    /// Programs are attached to network devices by links.
    TcxLinks,
}

/// A feature that nodelb uses if the kernel has it.
#[derive(Debug)]
pub struct Optional {
    pub feature: Feature,
    pub name: &'static str,
    pub since: Since,
    /// The kernel configuration that the feature needs.
    pub config: &'static str,
    pub used_for: &'static str,
    pub without: &'static str,
    pub probe: &'static str,
}

pub const OPTIONAL: [Optional; 8] = [
    Optional {
        feature: Feature::RefuseConnect,
        name: "bpf_set_retval() at connect and sendmsg",
        since: Since(5, 18),
        config: "-",
        used_for: "connections to a service without backends fail with ECONNREFUSED or EHOSTUNREACH",
        without: "connections to a service without backends fail with EPERM",
        probe: "a program that calls it is loaded",
    },
    Optional {
        feature: Feature::RefuseBind,
        name: "bpf_set_retval() at bind",
        since: Since(5, 18),
        config: "-",
        used_for: "binding a served NodePort fails with EADDRINUSE",
        without: "NodePorts are not protected: a process that binds one receives its traffic from outside the node; \
                  nodelb frontends shows which are bound",
        probe: "a program that calls it is loaded; SO_NETNS_COOKIE is read",
    },
    Optional {
        feature: Feature::Netns,
        name: "SO_NETNS_COOKIE",
        since: Since(5, 14),
        config: "-",
        used_for: "loopback addresses and binds of the host are distinguished from those of pods",
        without: "NodePorts are not answered on loopback addresses, and not protected",
        probe: "it is read from a socket",
    },
    Optional {
        feature: Feature::Mptcp,
        name: "bpf_skc_to_mptcp_sock()",
        since: Since(5, 19),
        config: "CONFIG_MPTCP, CONFIG_DEBUG_INFO_BTF",
        used_for: "getpeername() on an MPTCP socket returns the service",
        without: "getpeername() on an MPTCP socket returns the backend",
        probe: "a program that calls it is loaded; /proc/sys/net/mptcp and /sys/kernel/btf/vmlinux exist",
    },
    Optional {
        feature: Feature::Flows,
        name: "iterators over per-socket maps or open files, with socket cookies",
        since: Since(5, 14),
        config: "CONFIG_DEBUG_INFO_BTF",
        used_for: "nodelb finds sockets that are connected to a removed backend",
        without: "sockets stay connected to removed backends until their programs close them",
        probe: "the iterators are loaded and attached",
    },
    Optional {
        feature: Feature::EndSockets,
        name: "SOCK_DESTROY for UDP and TCP sockets",
        since: Since(4, 9),
        config: "CONFIG_INET_DIAG_DESTROY, CONFIG_INET_UDP_DIAG",
        used_for: "nodelb closes sockets that are connected to a removed backend, so that clients connect again",
        without: "sockets stay connected to removed backends until their programs close them",
        probe: "a socket of nodelb is closed",
    },
    Optional {
        feature: Feature::NoCapability,
        name: "map access without capabilities while kernel.unprivileged_bpf_disabled is set",
        since: Since(5, 19),
        config: "-",
        used_for: "the daemon drops all capabilities after start",
        without: "the daemon keeps CAP_BPF",
        probe: "each operation on maps and links is tried without capabilities",
    },
    Optional {
        feature: Feature::TcxLinks,
        name: "tcx links",
        since: Since(6, 6),
        config: "-",
        used_for: "the daemon attaches the programs for connections from outside the node to network devices by links",
        without: "these programs are filters of the qdisc clsact (CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_BPF), which \
                  the reaper changes",
        probe: "the programs at the loopback device are queried",
    },
];

#[derive(Debug)]
pub struct Required {
    pub name: &'static str,
    pub since: Since,
    pub config: &'static str,
    pub(crate) found_by: FoundBy,
}

/// How nodelb detects that a required feature is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundBy {
    /// Programs may not call this helper.
    Helper(libbpf_sys::bpf_func_id),
    Capabilities,
    Trying,
}

impl Required {
    pub fn probe(&self) -> &'static str {
        match self.found_by {
            FoundBy::Helper(_) => "a program that calls it is loaded",
            FoundBy::Capabilities => "the capabilities of the process are read",
            FoundBy::Trying => "loading, attaching or pinning is tried",
        }
    }
}

pub const REQUIRED: [Required; 11] = [
    Required {
        name: "bpf_loop()",
        since: Since(5, 17),
        config: "-",
        found_by: FoundBy::Helper(libbpf_sys::BPF_FUNC_loop),
    },
    Required {
        name: "bpf_sk_storage_get() at cgroup hooks",
        since: Since(5, 8),
        config: "-",
        found_by: FoundBy::Helper(libbpf_sys::BPF_FUNC_sk_storage_get),
    },
    Required {
        name: "bpf_ktime_get_coarse_ns()",
        since: Since(5, 11),
        config: "-",
        found_by: FoundBy::Helper(libbpf_sys::BPF_FUNC_ktime_get_coarse_ns),
    },
    Required {
        name: "bpf_get_netns_cookie() at connect",
        since: Since(5, 7),
        config: "-",
        found_by: FoundBy::Helper(libbpf_sys::BPF_FUNC_get_netns_cookie),
    },
    Required { name: "atomic exchange in BPF programs", since: Since(5, 12), config: "-", found_by: FoundBy::Trying },
    Required {
        name: "capabilities CAP_BPF and CAP_PERFMON",
        since: Since(5, 8),
        config: "-",
        found_by: FoundBy::Capabilities,
    },
    Required {
        name: "cgroup hooks connect, sendmsg, recvmsg, getpeername, bind",
        since: Since(5, 8),
        config: "CONFIG_CGROUP_BPF, CONFIG_IPV6",
        found_by: FoundBy::Trying,
    },
    Required {
        name: "links to cgroups, pinned, updated and detached",
        since: Since(5, 9),
        config: "-",
        found_by: FoundBy::Trying,
    },
    Required {
        name: "compiled BPF programs (net.core.bpf_jit_enable is not 0)",
        since: Since(3, 16),
        config: "CONFIG_BPF_JIT",
        found_by: FoundBy::Trying,
    },
    Required { name: "batched access to hash maps", since: Since(5, 6), config: "-", found_by: FoundBy::Trying },
    Required {
        name: "arrays as shared memory",
        since: Since(5, 5),
        config: "CONFIG_BPF_SYSCALL",
        found_by: FoundBy::Trying,
    },
];

pub fn optional(feature: Feature) -> &'static Optional {
    let row = OPTIONAL.iter().find(|row| row.feature == feature);
    row.expect("invariant: every feature has a row, as a test sees")
}

/// The features of [`OPTIONAL`] that were probed on this machine, with the results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    found: BTreeSet<Feature>,
    missing: BTreeSet<Feature>,
}

impl Findings {
    pub fn note(&mut self, feature: Feature, is_there: bool) {
        let (to, from) = match is_there {
            true => (&mut self.found, &mut self.missing),
            false => (&mut self.missing, &mut self.found),
        };
        from.remove(&feature);
        to.insert(feature);
    }

    pub fn missing(&self) -> impl Iterator<Item = &'static Optional> {
        self.missing.iter().map(|feature| optional(*feature))
    }

    /// One line with the results, after the kernel's name and version.
    pub fn sentence(&self, kernel: &str) -> String {
        let rows = self.found.iter().map(|feature| optional(*feature));
        let found = rows.map(|row| format!("{} ({})", row.name, row.since)).collect::<Vec<_>>().join("; ");
        if self.missing.is_empty() {
            return format!("{kernel} has all optional features: {found}");
        }
        let rows = self.missing().map(|row| format!("{} ({}): {}", row.name, row.since, row.without));
        let missing = rows.collect::<Vec<_>>().join("; ");
        let and_has = if found.is_empty() { String::new() } else { format!(". It has {found}") };
        let total = self.found.len() + self.missing.len();
        format!("{kernel} lacks {} of {total} optional features: {missing}{and_has}", self.missing.len())
    }
}

#[cfg(test)]
#[path = "tests/features.rs"]
mod tests;
