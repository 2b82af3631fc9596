//! A hook at a network device where a program runs, and the device.

use std::fmt;

use crate::pins::numbered;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSide {
    /// To other machines.
    Uplink,
    /// To a pod with its own kernel.
    Pod,
}

/// A device that needs programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookedDevice {
    pub ifindex: u32,
    pub side: DeviceSide,
    /// Length of its link-layer header in bytes: 14, or 0 without one.
    pub l2_length: u8,
    pub xdp: XdpFit,
}

/// Whether an XDP program at a device gets the packets that the programs at tc get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpFit {
    Fits,
    /// VLAN devices are on top of the device. Its driver may take the tags off before the program runs.
    Vlans,
    /// A native program would run at the ports of the device: it is a bond.
    Ports,
    /// Not known yet, after a start.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    In,
    Out,
}

impl Direction {
    /// In the order of attaching programs.
    pub(crate) const ALL: [Self; 2] = [Self::Out, Self::In];

    fn prefix(self) -> &'static str {
        match self {
            Self::In => "packets-in-",
            Self::Out => "packets-out-",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "ingress",
            Self::Out => "egress",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HookPoint {
    pub(crate) ifindex: u32,
    pub(crate) direction: Direction,
}

impl HookPoint {
    /// The hooks of a device, in the order of attaching programs.
    pub(crate) fn at(ifindex: u32) -> [Self; 2] {
        Direction::ALL.map(|direction| Self { ifindex, direction })
    }

    pub(crate) fn pin_name(self) -> String {
        format!("{}{}", self.direction.prefix(), self.ifindex)
    }

    pub(crate) fn from_pin_name(name: &str) -> Option<Self> {
        let found = |direction: Direction| Some((numbered(name, direction.prefix())?, direction));
        let (ifindex, direction) = Direction::ALL.into_iter().find_map(found)?;
        Some(Self { ifindex, direction })
    }
}
