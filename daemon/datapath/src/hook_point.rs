//! A hook at a network device where a program runs.

use std::fmt;

use crate::pins::numbered;

/// The direction of packets at a device.
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
    /// The name of the pin of its link.
    pub(crate) fn pin_name(self) -> String {
        format!("{}{}", self.direction.prefix(), self.ifindex)
    }

    pub(crate) fn from_pin_name(name: &str) -> Option<Self> {
        let found = |direction: Direction| Some((numbered(name, direction.prefix())?, direction));
        let (ifindex, direction) = Direction::ALL.into_iter().find_map(found)?;
        Some(Self { ifindex, direction })
    }
}
