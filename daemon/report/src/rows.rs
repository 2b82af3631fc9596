//! The rows of every response as data: the admin API serialises them, the command line reads them, and both render them
//! as tables. A field is a key in JSON and a column in text at once; the schema of the API is made from these structs.

mod answer;
pub mod described;
mod diagnosis;
pub mod from_maps;
mod kept;
pub mod listed;
mod packets;
mod row;
mod services;
mod sources;
mod tables;
mod traffic;

pub use answer::{Answer, Dated, Rendered};
pub use diagnosis::{ConnectTestRow, Diagnosis, FindingKind, FindingRow, FindingSeverity, SkippedRow};
pub use packets::{
    ConnectionRow, Connections, CountedRow, DIRECTIONS, DeviceRow, Devices, DropRow, Drops, LINKS, ListedRow, LostRow,
    PATHS, PacketRow, Packets, PacketsRow, ROLES, WatcherRow,
};
pub use row::{Micros, Row, ToCell, table};
pub(crate) use services::SAME_TIME;
pub use services::{
    BackendRow, Backends, CheckResult, FrontendRow, Frontends, HistoryAnswer, HistoryRow, ServiceRow, Services,
    direct_return,
};
pub use sources::{
    ApiserverRow, Apiservers, CheckRow, ConfigAnswer, ConfigRow, Healthz, NameRow, Names, Readyz, RouteRow, Routes,
    SessionRow, SourceRow, Sources,
};
pub use tables::{
    ComparedRow, DiffAnswer, DifferenceRow, LimitRow, MapFrontendRow, MapServiceRow, MapSlotRow, Maps, NodeAddressRow,
    StepRow, TraceAnswer, TraceBackendRow, VerdictRow,
};
pub use traffic::{CounterRow, Counters, RateRow, Rates};

#[cfg(test)]
#[path = "rows/tests.rs"]
mod tests;
