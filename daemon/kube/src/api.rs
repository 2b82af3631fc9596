//! The objects of the Kubernetes API, and the requests for them: for which objects ([`scope`], [`selector`]), and how
//! ([`request`]). [`list_watch`] reads the responses,
//! [`splitter`] cuts them into objects, [`decode`] and [`objects`] decode them, and [`translate`] translates them into
//! the core's model, with the annotations of [`health_check`] and shared [`names`]. Objects that are not watched have the
//! types of `k8s-openapi`.

pub mod decode;
pub mod difference;
pub mod health_check;
pub mod list_watch;
pub mod names;
pub mod objects;
mod plain;
mod plain_objects;
pub mod request;
pub mod scope;
pub mod selector;
pub mod splitter;
pub mod translate;
