//! Cases: steps on a node.

use std::collections::BTreeMap;

use nodelb_programs::key::Side;
use nodelb_programs::node::Packet;

use crate::frame::described;
use crate::world::World;

/// One case of a file: a name, the lines that describe the node, and the steps.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) world: Vec<String>,
    pub(crate) steps: Vec<String>,
}

/// The worlds and cases of a file.
pub(crate) fn cases(text: &str) -> Vec<Case> {
    let mut worlds: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut cases, mut world) = (Vec::<Case>::new(), None::<String>);
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#')) {
        let is_indented = line.starts_with(' ');
        let line = line.trim();
        match (line.split_once(' '), is_indented) {
            (Some(("world", name)), false) => {
                worlds.insert(name.to_owned(), Vec::new());
                world = Some(name.to_owned());
            }
            (Some(("case", name)), false) => {
                cases.push(Case { name: name.to_owned(), world: Vec::new(), steps: Vec::new() });
                world = None;
            }
            (_, false) => panic!("expected `world NAME` or `case NAME`: {line}"),
            (Some(("world", name)), true) => {
                let lines = worlds.get(name).unwrap_or_else(|| panic!("unknown world {name}")).clone();
                match &world {
                    Some(own) => worlds.get_mut(own).unwrap().extend(lines),
                    None => cases.last_mut().unwrap().world.extend(lines),
                }
            }
            _ if line.starts_with("=>") => {}
            _ => match (&world, cases.last_mut()) {
                (Some(own), _) => worlds.get_mut(own).unwrap().push(line.to_owned()),
                (None, Some(case)) => case.steps.push(line.to_owned()),
                (None, None) => panic!("a line before the first world: {line}"),
            },
        }
    }
    cases
}

/// `in DEVICE PACKET`, `early DEVICE PACKET`, `out DEVICE PACKET` or `out DEVICE from DEVICE PACKET`.
pub(crate) fn packet(world: &World, step: &str) -> Packet {
    let mut parts = step.splitn(3, ' ');
    let side = match parts.next() {
        Some("in" | "early") => Side::Arriving,
        Some("out") => Side::Leaving,
        other => panic!("unknown step {other:?}"),
    };
    let name = parts.next().expect("a device").trim_end_matches(':');
    let device = world.devices.get(name).unwrap_or_else(|| panic!("unknown device {name}"));
    let rest = parts.next().expect("a packet");
    let (came_by, rest) = match rest.strip_prefix("from ").and_then(|rest| rest.split_once(' ')) {
        Some((from, rest)) => (world.devices.get(from).expect("a device").ifindex, rest),
        None => (0, rest),
    };
    let described = described(rest);
    Packet {
        bytes: described.frame((device.l2_length == 14).then_some(device.mac)),
        ifindex: device.ifindex,
        came_by,
        hook: device.hook(side),
        l2_length: device.l2_length,
        is_for_host: !described.is_for_others,
        vlan_tag: described.vlan_tag,
        is_gso: described.is_gso,
        is_tracked_request: described.is_tracked_request,
        linear: described.linear,
        summed: described.summed,
    }
}
