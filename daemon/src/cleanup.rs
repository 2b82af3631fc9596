//! `nodelb cleanup`: removes every pin and link, and with them the translation of service addresses.

use std::io::Write;

use anyhow::Context;
use nodelb_datapath::CrashPoint;

use crate::cli::CleanupOptions;
use crate::config::Config;
use crate::exit::{Code, Failure};
use crate::run::{crash_after, refused};

/// Removes what nodelb pinned, and says how much it was.
///
/// # Errors
/// When a daemon works with it (69), or something cannot be removed (71).
pub fn cleanup(options: &CleanupOptions, told: &mut dyn Write) -> Result<(), Failure> {
    let directory = match &options.pin_directory {
        Some(directory) => directory.clone(),
        None => {
            let config = Config::load(options.config.as_deref()).map_err(|error| Failure::new(Code::Config, error))?;
            config.datapath.pin_directory
        }
    };
    let report = nodelb_datapath::cleanup(&directory, &CrashPoint::new(crash_after()?)).map_err(refused)?;
    writeln!(told, "removed {} links and {} maps from {}", report.links, report.maps, directory.display())
        .context("writing the summary")?;
    for path in report.left {
        writeln!(told, "left in place, since nodelb did not make it: {}", path.display())
            .context("writing the summary")?;
    }
    Ok(())
}
