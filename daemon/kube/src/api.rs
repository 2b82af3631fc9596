//! Kubernetes' objects and how they are asked for: the only place where its words are spoken. Bytes are cut into objects
//! ([`splitter`]), decoded ([`decode`], [`objects`]) and translated into nodelb's words ([`translate`]); [`seen`] are objects
//! as commands show them.

pub mod decode;
pub mod difference;
pub mod objects;
pub mod page;
pub mod printable;
pub mod request;
pub mod seen;
pub mod splitter;
pub mod translate;
