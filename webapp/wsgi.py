"""What a WSGI server imports."""

from webapp import create_app

app = create_app()
