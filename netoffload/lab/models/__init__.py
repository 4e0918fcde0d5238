"""Models: the time of an exchange (``exchange``), its schedules (``simulation``), the codecs as circuits."""
