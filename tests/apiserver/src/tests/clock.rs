use std::time::{Duration, UNIX_EPOCH};

use super::*;

#[test]
fn dates() {
    let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
    assert_eq!(at(0), "1970-01-01T00:00:00Z");
    assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
    assert_eq!(at(1_767_225_599), "2025-12-31T23:59:59Z");
}
