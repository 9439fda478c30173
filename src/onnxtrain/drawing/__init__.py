"""Pictures without another program: shapes (`scene`), and graphs of models (`layout`)."""
