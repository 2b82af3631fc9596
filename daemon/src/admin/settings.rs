//! `/config`: the configuration in effect. It shows the names of files with credentials, but never their contents.

use nodelb_core::output::schema::{Column, Schema};
use nodelb_core::output::table::{Cell, Table};

use crate::config::Config;

/// The columns of `/config`.
pub(super) static CONFIG: Schema<[Column; 3]> =
    Schema { name: "config", columns: [Column::name("Key"), Column::one_of("From", &ORIGINS), Column::text("Value")] };

const ORIGINS: [&str; 2] = ["default", "file"];

/// Returns one row per key, in the order of `config.example.toml`.
pub(super) fn config(config: &Config) -> Table {
    let [default, file] = ORIGINS;
    let cells = |(key, value, is_default): (String, String, bool)| {
        [Cell::Text(key), Cell::text(if is_default { default } else { file }), Cell::Text(value)]
    };
    Table::new(&CONFIG, config.settings().map(cells))
}
