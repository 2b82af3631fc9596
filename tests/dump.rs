//! The maps as text with one line per entry, for comparisons in tests. It contains names instead of ids, so that two
//! equivalent states have the same text.

use std::fmt::Write as _;

use nodelb_core::model::addr::Addr;
use nodelb_core::model::forward::Forward;
use nodelb_core::model::uplink::UplinkEntry;
use nodelb_core::state::entries::{MapState, ServiceId, Slot, backends_of};

/// Every entry, in address order. `name_of` returns the name of a service id; an id without a name is shown as `service
/// 7`.
pub(crate) fn dump(state: &MapState, name_of: impl Fn(ServiceId) -> Option<String>) -> String {
    let name = |id: ServiceId| name_of(id).unwrap_or_else(|| format!("service {id}"));
    let mut services: Vec<String> = Vec::with_capacity(state.services.len());
    for (id, entry) in state.services.iter() {
        let mut line = format!("service  {}  cluster={}", name(*id), list(&entry.cluster));
        if !entry.local.is_empty() {
            push(&mut line, format_args!("  local={}", list(&entry.local)));
        }
        if entry.affinity_seconds > 0 {
            push(&mut line, format_args!("  affinity={}s", entry.affinity_seconds));
        }
        if entry.may_be_bound {
            line.push_str("  bindable");
        }
        if !entry.has_backends {
            line.push_str("  empty");
        }
        if entry.has_rings {
            line.push_str("  rings");
        }
        if entry.forward != Forward::Translate {
            push(&mut line, format_args!("  forward={}", entry.forward));
        }
        services.push(line);
    }
    services.sort();

    let mut text = String::new();
    for (address, entry) in &state.frontends {
        let view = if entry.inside_local { "local" } else { "cluster" };
        let outside = if entry.outside_local { "local" } else { "cluster" };
        push(&mut text, format_args!("frontend {address}  {}  inside={view} outside={outside}\n", name(entry.service)));
    }
    for line in services {
        push(&mut text, format_args!("{line}\n"));
    }
    for addr in &state.node_addrs {
        push(&mut text, format_args!("node     {addr}\n"));
    }
    for (address, entry) in &state.outside {
        let view = if entry.local { "local" } else { "cluster" };
        let ranges = if entry.has_ranges { "  ranges" } else { "" };
        push(&mut text, format_args!("outside  {address}  {}  {view}{ranges}\n", name(entry.service)));
    }
    let ranges = state.source_ranges.iter().map(|(id, range)| (name(*id), range));
    let mut ranges: Vec<String> = ranges.map(|(name, range)| format!("range    {range}  {name}\n")).collect();
    ranges.sort();
    text.extend(ranges);
    for (ifindex, entry) in &state.uplinks {
        let addr = |addr: Option<Addr>| addr.map_or_else(|| "none".into(), |addr| addr.to_string());
        let (v4, v6) = (addr(entry.v4), addr(entry.v6));
        let UplinkEntry { mtu, l2_length, is_v4_source, is_v6_source, is_strict, .. } = entry;
        let flags = [(is_v4_source, "  v4-source"), (is_v6_source, "  v6-source"), (is_strict, "  strict")];
        let flags = flags.map(|(is_set, text)| if *is_set { text } else { "" }).concat();
        push(&mut text, format_args!("uplink   {ifindex}  {v4}  {v6}  mtu={mtu} l2={l2_length}{flags}\n"));
    }
    text
}

/// Formats as `[192.0.2.1:80/TCP, 192.0.2.2:80/TCP*3]`: each backend once, with its number of slots if it has more than
/// one.
fn list(slots: &[Slot]) -> String {
    let mut text = String::from("[");
    for (index, (addr, count)) in backends_of(slots).enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        push(&mut text, format_args!("{addr}"));
        if count > 1 {
            push(&mut text, format_args!("*{count}"));
        }
    }
    text.push(']');
    text
}

fn push(text: &mut String, args: std::fmt::Arguments<'_>) {
    text.write_fmt(args).expect("writing to a String does not fail");
}
