"""The bundled KRaft as a subject: installed, started, watched, collected."""
