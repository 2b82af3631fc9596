//! The web page in a real browser: headless Chromium, driven over WebDriver. Needs the Debian packages chromium and
//! chromium-driver, and root to run in a sandbox of its own. Screenshots are written to target/page.

#![expect(clippy::panic, reason = "a test stops where it cannot go on")]

#[path = "page/browser.rs"]
mod browser;
#[path = "page/views.rs"]
mod views;

#[path = "sandbox/mod.rs"]
#[expect(dead_code, reason = "the maps of the daemon are in memory")]
mod sandbox;
