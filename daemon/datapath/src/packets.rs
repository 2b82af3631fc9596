//! The packet path's part of the datapath: the maps that it keeps over restarts. The programs are attached by
//! [`crate::device_hooks`].

pub(crate) mod maps;
pub(crate) mod settings;
