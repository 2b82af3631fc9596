//! The map `outside_addrs`: the addresses in `outside`, whatever their ports. NodePorts have no address of their own.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, PoisonError};

use libbpf_rs::MapHandle;
use nodelb_core::model::addr::L4Addr;

use super::handles::PacketMaps;
use crate::layout;
use crate::sys;

/// Tells the programs which addresses belong to services. Works without capabilities.
#[derive(Debug)]
pub(crate) struct OutsideAddrs {
    map: MapHandle,
    /// The addresses with their ports.
    frontends: Mutex<BTreeSet<L4Addr>>,
}

impl OutsideAddrs {
    /// Makes the map contain the addresses in `outside` and no others: programs of an earlier start may have left it.
    pub(crate) fn new(maps: &PacketMaps) -> io::Result<Self> {
        let mut frontends = BTreeSet::new();
        sys::each_batch::<{ size_of::<layout::FrontendKeyBytes>() }, { size_of::<layout::OutsideBytes>() }>(
            maps.find("outside")?,
            |keys, _| frontends.extend(keys.iter().filter_map(layout::parse_frontend_key).filter(has_address)),
        )?;
        let map = maps.handle("outside_addrs")?;
        let wanted: BTreeSet<_> = frontends.iter().map(|frontend| layout::node_addr(frontend.addr)).collect();
        let present = sys::entries::<_, { size_of::<u32>() }>(&map)?.into_iter().map(|(key, _)| key).collect();
        wanted.difference(&present).try_for_each(|key| sys::update(&map, key, &[0; size_of::<u32>()]))?;
        present.difference(&wanted).try_for_each(|key| sys::delete(&map, key))?;
        Ok(Self { map, frontends: Mutex::new(frontends) })
    }

    /// Adds the address of a frontend that has been added to `outside`, if it is the first one.
    pub(crate) fn add(&self, frontend: &L4Addr) -> io::Result<()> {
        if !has_address(frontend) {
            return Ok(());
        }
        let mut frontends = self.frontends.lock().unwrap_or_else(PoisonError::into_inner);
        if frontends.range(L4Addr::all_at(frontend.addr)).next().is_none() {
            sys::update(&self.map, &layout::node_addr(frontend.addr), &[0; size_of::<u32>()])?;
        }
        frontends.insert(*frontend);
        Ok(())
    }

    /// Removes the address of a frontend that has been deleted from `outside`, if it was the last one.
    pub(crate) fn remove(&self, frontend: &L4Addr) -> io::Result<()> {
        let mut frontends = self.frontends.lock().unwrap_or_else(PoisonError::into_inner);
        let is_there = frontends.remove(frontend);
        if !is_there || frontends.range(L4Addr::all_at(frontend.addr)).next().is_some() {
            return Ok(());
        }
        sys::delete(&self.map, &layout::node_addr(frontend.addr))
    }
}

fn has_address(frontend: &L4Addr) -> bool {
    !frontend.addr.is_unspecified()
}
