//! What maps hold, in a form that depends on no layout; and the table of who reads it from the maps of which layout
//! version.
//!
//! A changed layout takes three steps: [`crate::versions::LAYOUT`] is raised; what reads the layout of before is copied to a
//! file of its own, with the sizes and offsets it knows, and put into the row of its version; [`current`] gets the next
//! row. A row goes when no node can have that version any more.

use std::path::Path;

use nodelb_core::datapath::Limits;
use nodelb_core::state::kernel_check::Content;

use crate::error::{OpenError, failed};
use crate::layout::Client;
use crate::maps::{Handles, Maps, Spec, kinds};
use crate::read;

/// What a generation of maps holds.
#[derive(Debug)]
pub(crate) struct Carried {
    pub(crate) content: Content,
    /// Which backend each client of a service with affinity had last.
    pub(crate) clients: Vec<Client>,
    pub(crate) limits: Limits,
}

/// Reads the maps of one layout version.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) layout: u32,
    /// Reads what is pinned in a generation's directory.
    pub(crate) read: fn(&Path) -> Result<Carried, OpenError>,
    /// Whether what it keeps about sockets means what today's does: then those maps go on in use, if they are of the same
    /// kind, and open sockets keep the names of their peers.
    pub(crate) has_todays_sockets: bool,
}

const READERS: [Reader; 1] = [Reader { layout: 1, read: current, has_todays_sockets: true }];

/// Who reads the maps of this version.
pub(crate) fn reader(layout: u32) -> Option<&'static Reader> {
    READERS.iter().find(|reader| reader.layout == layout)
}

/// Reads maps of today's layout.
pub(crate) fn current(directory: &Path) -> Result<Carried, OpenError> {
    let handles = Handles::open(directory)
        .map_err(|(name, error)| failed("opening (nodelb cleanup starts afresh)", &directory.join(name))(error))?;
    for (map, kind) in handles.0.iter().zip(kinds()) {
        if !Spec::of(map).map_err(failed("reading", directory))?.same_kind(kind) {
            return Err(failed("using", directory)(FOREIGN));
        }
    }
    let limits = handles.limits();
    let maps = Maps::new(handles).map_err(failed("mapping", directory))?;
    let mut content = read::content(&maps).map_err(failed("reading", directory))?;
    read::runs(&maps, &mut content);
    let clients = read::clients(&maps).map_err(failed("reading affinity from", directory))?;
    Ok(Carried { content, clients, limits })
}

/// Why a map is not touched.
pub(crate) const FOREIGN: &str =
    "a map there is of another kind: it was made by something else; nodelb cleanup starts afresh";

#[cfg(test)]
#[path = "tests/carry.rs"]
mod tests;
