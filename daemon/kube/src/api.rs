//! The objects of the Kubernetes API, and the requests for them. No other module knows Kubernetes' fields. [`list_watch`]
//! reads the responses, [`splitter`] cuts them into objects, [`decode`] and [`objects`] decode them, and [`translate`]
//! translates them into the core's model. [`seen`] contains the objects as commands show them.

pub mod decode;
pub mod difference;
pub mod list_watch;
pub mod objects;
pub mod printable;
pub mod request;
pub mod seen;
pub mod splitter;
pub mod translate;
