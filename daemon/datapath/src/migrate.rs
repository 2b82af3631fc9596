//! The content of maps in a form that is independent of the layout, and the table of the readers for each layout
//! version.
//!
//! A change of the layout takes three steps: raise [`crate::versions::LAYOUT`]; copy the reader of the previous layout
//! to its own file, with its sizes and offsets, and put it into the row of its version; add a row for [`current`]. A
//! row is removed when no node can have its version any more.

use std::path::Path;

use nodelb_core::datapath::Limits;
use nodelb_core::state::kernel_check::Content;

use crate::error::{OpenError, failed};
use crate::layout::Client;
use crate::maps::{Handles, Maps, Spec, kinds};
use crate::read;

/// The content of a generation of maps.
#[derive(Debug)]
pub(crate) struct MigratedContent {
    pub(crate) content: Content,
    /// The last backend of each client, for services with affinity.
    pub(crate) clients: Vec<Client>,
    pub(crate) limits: Limits,
}

/// The reader for the maps of one layout version.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) layout: u32,
    /// Reads the maps that are pinned in the directory of a generation.
    pub(crate) read: fn(&Path) -> Result<MigratedContent, OpenError>,
    /// Whether its per-socket state means the same as in the current layout. If so, and if the maps have the same kind,
    /// they stay in use, and open sockets keep the names of their peers.
    pub(crate) has_todays_sockets: bool,
}

const READERS: [Reader; 1] = [Reader { layout: 1, read: current, has_todays_sockets: true }];

/// The reader for the maps of this version.
pub(crate) fn reader(layout: u32) -> Option<&'static Reader> {
    READERS.iter().find(|reader| reader.layout == layout)
}

/// Reads maps of the current layout.
pub(crate) fn current(directory: &Path) -> Result<MigratedContent, OpenError> {
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
    Ok(MigratedContent { content, clients, limits })
}

/// The reason why a map is not touched.
pub(crate) const FOREIGN: &str =
    "a map there is of another kind: it was made by something else; nodelb cleanup starts afresh";

#[cfg(test)]
#[path = "tests/migrate.rs"]
mod tests;
