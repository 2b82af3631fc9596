//! The packet programs at network devices: attached, kept over restarts, carried over to maps of other sizes, removed.
//! Each test has its own namespaces and needs root.

#[cfg(test)]
mod crash_points;
#[cfg(test)]
#[path = "devices/mod.rs"]
mod devices;
#[cfg(test)]
mod extent;
#[cfg(test)]
#[expect(dead_code, reason = "shared with other tests")]
mod links;
#[cfg(test)]
mod part;
#[cfg(test)]
mod pod;
#[cfg(test)]
mod reach;
#[cfg(test)]
mod sandbox;
