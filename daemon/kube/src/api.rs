//! The objects of the Kubernetes API, and the requests for them. No other module knows Kubernetes' fields. [`splitter`]
//! cuts responses into objects, [`decode`] and [`objects`] decode them, and [`translate`] translates them into the
//! core's model. [`seen`] contains the objects as commands show them.

pub mod decode;
pub mod difference;
pub mod objects;
pub mod page;
pub mod request;
pub mod seen;
pub mod splitter;
pub mod translate;

pub use nodelb_core::text as printable;
