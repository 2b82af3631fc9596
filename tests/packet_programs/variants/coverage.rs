//! Whether the table has a column for everything that may differ between two starts: each field of the options, each
//! constant of the programs, and each program.

use std::collections::{BTreeMap, BTreeSet};

use nodelb_core::datapath::Limits;
use nodelb_datapath::Options;
use nodelb_datapath::packets::PacketOptions;

use super::columns::Start;
use super::loaded::{CONSTANTS, Loaded};

/// Constants with values that follow from the kernel and the machine, not from the configuration alone: with one CPU, there is
/// one shard of counters.
const OF_KERNEL: [&str; 5] = ["counter_shards_mask", "has_mptcp", "has_set_retval", "node_netns", "weakly_ordered"];

/// The section of the sweep, which shares headers with the programs at devices. No option sets a constant in it.
const OF_SWEEP: &str = "sweep_bp.rodata";

/// What the rows have shown: for each field, constant and program, the values that it has had.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    values: BTreeMap<String, BTreeSet<String>>,
    rows: usize,
    programs: BTreeMap<String, usize>,
}

/// Makes a list of the fields of a struct, with their values as text. A field that is in neither list does not compile.
macro_rules! fields {
    ($struct:ident in $value:expr, { $($field:ident),* }, without { $($other:ident),* }) => {{
        let $struct { $($field,)* $($other: _),* } = $value;
        [$((concat!(stringify!($struct), ".", stringify!($field)), format!("{:?}", $field))),*]
    }};
}

impl Coverage {
    pub(super) fn add(&mut self, start: &Start, loaded: &Loaded) {
        self.rows += 1;
        let Start { options, has_types, may_lock } = start;
        // Where and how programs are attached is not what is loaded.
        let fields = fields!(
            Options in options,
            { nodeport_range, protect_nodeports, count_connections, layout },
            without { pin_directory, cgroup, limits, packets, hook_method, crash_after }
        );
        self.extend(fields.into_iter().chain(of_limits(&options.limits)));
        self.extend([("types", has_types.to_string()), ("locked memory", may_lock.to_string())]);
        if let Some(packets) = &options.packets {
            // Settings and policies are in maps, which the daemon writes at any time.
            let fields = fields!(
                PacketOptions in packets,
                {
                    nodeport_range, source_ports, max_connections, max_handshakes, max_fragments, count_connections,
                    has_pods, direct_return, tunnel_sources, foreign_connections, xdp
                },
                without { limits, settings, policies }
            );
            self.extend(fields);
        }
        for ((section, name), value) in &loaded.constants {
            self.note(format!("{section} {name}"), format!("{value:?}"));
        }
        for name in &loaded.programs {
            *self.programs.entry(name.clone()).or_default() += 1;
        }
    }

    fn extend(&mut self, fields: impl IntoIterator<Item = (&'static str, String)>) {
        fields.into_iter().for_each(|(name, value)| self.note(name.to_owned(), value));
    }

    fn note(&mut self, name: String, value: String) {
        self.values.entry(name).or_default().insert(value);
    }

    /// The sections of the constants.
    pub(super) fn sections(&self) -> Vec<&str> {
        let sections: BTreeSet<&str> = self.values.keys().filter_map(|name| Some(name.split_once(' ')?.0)).collect();
        sections.into_iter().filter(|section| section.ends_with(CONSTANTS)).collect()
    }

    /// The fields and constants that have had one value only.
    pub(super) fn unchanged(&self) -> Vec<&str> {
        let is_fixed = |name: &str| {
            name.split_once(' ').is_some_and(|(section, name)| section == OF_SWEEP || OF_KERNEL.contains(&name))
        };
        let single = self.values.iter().filter(|(name, values)| values.len() < 2 && !is_fixed(name));
        single.map(|(name, _)| name.as_str()).collect()
    }

    /// The programs that some rows have loaded, and others have not.
    pub(super) fn optional(&self) -> Vec<&str> {
        let some = self.programs.iter().filter(|(_, rows)| **rows < self.rows);
        some.map(|(name, _)| name.as_str()).collect()
    }
}

fn of_limits(limits: &Limits) -> [(&'static str, String); 6] {
    fields!(Limits in limits, { frontends, services, slots, affinity, outside, source_ranges }, without {})
}
