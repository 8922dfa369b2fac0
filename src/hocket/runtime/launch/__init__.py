"""Starting ranks: functions as threads or processes, programs under `hocket run`."""
